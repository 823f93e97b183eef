"""The bytes of artifacts: where they are kept, how they are received, and how a worker gets and unpacks them."""
