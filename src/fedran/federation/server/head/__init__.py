"""The newest classifier, and the gate that holds a worse one back."""
