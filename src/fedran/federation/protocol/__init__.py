"""What server and sites share: messages, receipts, identity, file formats and locks."""
