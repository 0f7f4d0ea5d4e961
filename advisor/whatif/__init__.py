"""What if the link, the tiers or the policies were others: a simulator of one engine."""
