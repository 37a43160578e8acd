"""From sums to a classifier: the ridge, the head, its calibration, Nystrom's formula."""
