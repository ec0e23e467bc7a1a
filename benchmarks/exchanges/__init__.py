"""What benchmarks/network.py is made of: links, workers behind them, cases, tables."""
