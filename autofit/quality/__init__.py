"""Answer quality of KV types and builds: prompts, answers, scores. `tune` chooses the winner."""
