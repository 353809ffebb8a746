"""The harness that builds the test VM's image, boots it and runs the tests inside."""
