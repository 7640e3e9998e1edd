"""The plots of the report, one module for each family, drawn by plotly."""
