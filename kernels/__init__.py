"""How fast bytes move here."""
