"""`agentcgroup report`: what calls needed, from the ledger, as one HTML file."""
