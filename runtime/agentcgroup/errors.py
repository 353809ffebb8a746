"""The one exception that users see: it names the thing, the cause and the next step."""


class UserError(Exception):
    """Bad input or a condition the user can mend; printed as one line, never as a traceback."""
