"""Files to upright 8-bit RGB pixels, native crops, and checks of a reference."""
