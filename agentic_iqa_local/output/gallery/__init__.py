"""The gallery of a batch: one HTML file with thumbnails and the full account of every row."""
