"""Memory of a candidate: prediction, calibration by launches, the fit boundary, dominance."""
