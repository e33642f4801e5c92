"""A batch on several machines: Ray carries messages to workers, each of which works through a window of its
own."""
