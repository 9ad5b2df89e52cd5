"""`lmi deploy`: create a SageMaker endpoint from a serving.properties and an instance type."""


class CannotDeploy(Exception):
    """The endpoint cannot be planned, created or compared. The message is for users."""
