"""Alerts: rules over what a store knows, their state for each subject, and what people are told. Pure."""
