"""The runtime's own programs that predict memory and measure divergence."""
