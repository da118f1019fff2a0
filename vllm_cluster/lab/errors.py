"""The one exception of the lab."""


class LabError(Exception):
    """A refusal or a failure, worded for the person who runs the lab."""
