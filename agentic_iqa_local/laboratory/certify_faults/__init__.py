"""Does certify find and name what is wrong? Faults are planted in copies of the product,
never in the checker."""
