"""Where a picture is damaged: the quality of overlapping tiles, read in batches, as a map over the picture."""
