"""The exceptions of the lab."""


class LabError(Exception):
    """A refusal or a failure, worded for the person who runs the lab."""


class WrongValueError(LabError):
    """Something that was asked for cannot be: a host that is none, a rate that is none."""
