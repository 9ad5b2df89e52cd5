"""`lmi deploy`: a serving.properties and an instance type become a SageMaker endpoint."""


class CannotDeploy(Exception):
    """The endpoint cannot be planned, created or compared. The text is for users."""
