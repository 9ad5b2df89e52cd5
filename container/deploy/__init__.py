"""`lmi deploy`: create a SageMaker endpoint from a serving.properties and an instance type."""

from container.errors import UserError


class CannotDeploy(UserError):
    """The endpoint cannot be planned, created or compared."""
