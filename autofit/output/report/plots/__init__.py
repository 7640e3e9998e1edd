"""The plots of the report, one module for each, drawn by plotly."""
