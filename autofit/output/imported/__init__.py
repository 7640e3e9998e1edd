"""How others write down what a server is started with: one module for each way."""
