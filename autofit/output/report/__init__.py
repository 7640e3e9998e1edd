"""Reports of a study and of a sweep: HTML, Markdown and plots."""
