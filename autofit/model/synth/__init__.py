"""Models of random weights that llama.cpp loads and answers with."""
