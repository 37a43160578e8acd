"""Edge aggregators."""
