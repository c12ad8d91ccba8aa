"""Strategy ``vector`` (GEMV): products of few columns, which stream A through registers once."""
