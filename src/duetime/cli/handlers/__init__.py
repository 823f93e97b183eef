"""Commands about handlers: listed, and put, shown, tested and deleted where their target is stored."""
