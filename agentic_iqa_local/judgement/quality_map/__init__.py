"""Where a picture is damaged: the quality of overlapping tiles as a map over the picture."""
