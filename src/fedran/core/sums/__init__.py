"""What adds up: class sums, accounts, the exact sum, and the aggregator over all messages."""
