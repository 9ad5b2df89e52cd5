"""`lmi deploy`: a serving.properties and an instance type become a SageMaker endpoint."""
