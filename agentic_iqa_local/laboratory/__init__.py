"""What makes and measures the product, and what it never imports: training, benchmarks, endurance."""
