"""Methods in closed form: one round per task."""
