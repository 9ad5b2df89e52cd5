"""The control plane: models, endpoint configurations and endpoints, with the operations of boto3's `sagemaker`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from container.endpoint.api import ApiError, arn, refused, runtime_refused
from container.endpoint.endpoint import Endpoint, Report
from container.endpoint.figures import VariantFigures
from container.endpoint.fleet import Fleet
from container.endpoint.process import Launcher
from container.endpoint.resources import Collection, Definition
from container.endpoint.rollout import AlarmRule, Rollout
from container.endpoint.tags import Tags
from container.endpoint.validation import Service


class Platform:
    """All deployed resources. Thread-safe: each name is added and removed atomically."""

    def __init__(self, launcher: Launcher, report: Report, forget: Callable[[Endpoint], None]) -> None:
        """forget: called with each endpoint that was deleted."""
        self.alarms: dict[str, AlarmRule] = {}
        self._launcher = launcher
        self._report = report
        self._forget = forget
        self._service = Service("sagemaker", refused)
        self._models: Collection[Definition] = Collection("Model", "model", "model")
        self._configs: Collection[Definition] = Collection(
            "EndpointConfig", "endpoint-config", "endpoint configuration"
        )
        self._endpoints: Collection[Endpoint] = Collection("Endpoint", "endpoint", "endpoint")
        self._tags = Tags(self._exists)
        self._ended: list[VariantFigures] = []
        self._closed = False
        self._calling = threading.Lock()
        """Held by each operation. They start threads, so none takes long."""
        self._operations: dict[str, Callable[[Mapping[str, Any]], dict[str, object]]] = {
            "CreateModel": self._create_model,
            "DescribeModel": self._models.describe,
            "DeleteModel": self._models.delete,
            "ListModels": self._models.page,
            "CreateEndpointConfig": self._create_endpoint_config,
            "DescribeEndpointConfig": self._configs.describe,
            "DeleteEndpointConfig": self._configs.delete,
            "ListEndpointConfigs": self._configs.page,
            "CreateEndpoint": self._create_endpoint,
            "DescribeEndpoint": self._endpoints.describe,
            "UpdateEndpoint": self._update_endpoint,
            "UpdateEndpointWeightsAndCapacities": self._scale,
            "DeleteEndpoint": self._delete_endpoint,
            "ListEndpoints": self._endpoints.page,
            "AddTags": self._tags.add,
            "ListTags": self._tags.list,
            "DeleteTags": self._tags.delete,
        }

    def call(self, operation: str, params: Mapping[str, Any]) -> dict[str, object]:
        """Run an operation and return its response. Raises ApiError."""
        if operation not in self._operations:
            raise ApiError("UnknownOperationException", f"{operation}: not supported by lmi endpoint")
        self._service.check(operation, params)
        with self._calling:
            if self._closed:
                raise refused("lmi endpoint is stopping")
            answer = self._operations[operation](params)
            if operation.startswith("Create"):
                self._tags.replace(str(next(iter(answer.values()))), params.get("Tags", ()))
        return answer

    def endpoint(self, name: str) -> Endpoint:
        """Return the endpoint that an invocation names. Raises ApiError."""
        found = self._endpoints.items.get(name)
        if found is None:
            raise runtime_refused(f"Endpoint {name} not found.")
        return found

    def figures(self) -> list[VariantFigures]:
        """Return the figures of all variants since the start, including deleted ones."""
        endpoints = tuple(self._endpoints.items.values())
        return self._ended + [one for endpoint in endpoints for one in endpoint.figures]

    def close(self) -> None:
        """Stop all endpoints in parallel, and refuse further operations."""
        with self._calling:
            self._closed = True
        endpoints = tuple(self._endpoints.items.values())
        with ThreadPoolExecutor(len(endpoints) or 1) as pool:
            list(pool.map(Endpoint.close, endpoints))

    def _exists(self, resource: str) -> bool:
        return any(each.has_arn(resource) for each in (self._models, self._configs, self._endpoints))

    def _create_model(self, params: Mapping[str, Any]) -> dict[str, object]:
        containers = params.get("Containers", ())
        if ("PrimaryContainer" in params) == bool(containers):
            raise refused(
                "PrimaryContainer: required, or one container in Containers; allowed: only one of them"
            )
        if len(containers) > 1:
            raise refused(
                f"Containers: inference pipelines are not supported by lmi endpoint (got {len(containers)} containers);"
                " allowed: one container"
            )
        return self._models.add(params["ModelName"], Definition(params))

    def _create_endpoint_config(self, params: Mapping[str, Any]) -> dict[str, object]:
        production, shadows = params["ProductionVariants"], params.get("ShadowProductionVariants", ())
        names = [variant["VariantName"] for variant in (*production, *shadows)]
        if len(set(names)) < len(names):
            raise refused(f"VariantName: must be unique (got {', '.join(names)})")
        if shadows and (len(production), len(shadows)) != (1, 1):
            raise refused(
                "ShadowProductionVariants: allowed: one shadow variant beside one production variant"
            )
        if shadows and "AsyncInferenceConfig" in params:
            raise refused("AsyncInferenceConfig: not supported with shadow variants")
        for variant in (*production, *shadows):
            self._models.get(variant["ModelName"])
        return self._configs.add(params["EndpointConfigName"], Definition(params))

    def _create_endpoint(self, params: Mapping[str, Any]) -> dict[str, object]:
        name = params["EndpointName"]
        endpoint = Endpoint(name, self._fleet(name, params["EndpointConfigName"]), self._report)
        deployment = endpoint.last_deployment = params.get("DeploymentConfig", {})
        self._rollout(deployment, endpoint.fleet)  # refuses what an update would refuse
        answer = self._endpoints.add(name, endpoint)
        endpoint.create()
        return answer

    def _update_endpoint(self, params: Mapping[str, Any]) -> dict[str, object]:
        endpoint = self._endpoints.get(params["EndpointName"])
        green = self._fleet(endpoint.name, params["EndpointConfigName"])
        if params.get("RetainAllVariantProperties"):
            excluded = {
                one["VariantPropertyType"] for one in params.get("ExcludeRetainedVariantProperties", ())
            }
            for name in endpoint.fleet.variants.keys() & green.variants.keys():
                before, after = endpoint.fleet.variants[name], green.variants[name]
                after.weight = after.weight if "DesiredWeight" in excluded else before.weight
                after.count = after.count if "DesiredInstanceCount" in excluded else before.count
        deployment = params.get("DeploymentConfig", {})
        if params.get("RetainDeploymentConfig"):
            deployment = endpoint.last_deployment
        rollout = self._rollout(deployment, green)
        if len(rollout.shares) > 1 and endpoint.fleet.variants.keys() != green.variants.keys():
            raise refused(
                "DeploymentConfig: CANARY and LINEAR need the same variant names in both configurations"
                f" (got {', '.join(endpoint.fleet.variants)}; {', '.join(green.variants)})"
            )
        endpoint.update(green, rollout, deployment)
        return {"EndpointArn": arn("endpoint", endpoint.name)}

    def _rollout(self, deployment: Mapping[str, Any], fleet: Fleet) -> Rollout:
        """Read the `DeploymentConfig` of a fleet. Raises ApiError."""
        return Rollout.of(deployment, sum(one.count for one in fleet.variants.values()), self.alarms)

    def _scale(self, params: Mapping[str, Any]) -> dict[str, object]:
        endpoint = self._endpoints.get(params["EndpointName"])
        endpoint.scale(params["DesiredWeightsAndCapacities"])
        return {"EndpointArn": arn("endpoint", endpoint.name)}

    def _delete_endpoint(self, params: Mapping[str, Any]) -> dict[str, object]:
        endpoint = self._endpoints.get(params["EndpointName"])

        def removed() -> None:
            self._ended += endpoint.figures
            self._endpoints.items.pop(endpoint.name, None)
            self._forget(endpoint)

        endpoint.delete(removed)
        return {}

    def _fleet(self, endpoint: str, config: str) -> Fleet:
        fields = self._configs.get(config).fields
        variants = (*fields["ProductionVariants"], *fields.get("ShadowProductionVariants", ()))
        names = {variant["ModelName"] for variant in variants}
        containers = {name: _container(self._models.get(name).fields) for name in names}
        return Fleet(endpoint, fields, containers, self._launcher)


def _container(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the only container definition of a model."""
    found: Mapping[str, Any] = model.get("PrimaryContainer") or model["Containers"][0]
    return found
