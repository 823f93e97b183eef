"""The dashboard: pages that the server writes, for people who operate the system. docs/design/dashboard.md explains how a page is made."""
