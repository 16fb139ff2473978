"""What was generated, measured and compared: metrics, comparisons of strategies, reports."""
