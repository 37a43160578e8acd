"""One task: offers go out, envelopes come in, receipts and the classifier go back."""
