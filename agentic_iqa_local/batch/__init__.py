"""Many pictures: names, work and durable rows, on this machine or several."""
