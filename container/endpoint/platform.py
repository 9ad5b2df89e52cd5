"""The control plane: models, endpoint configurations and endpoints, by the operations of boto3's `sagemaker`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from container.endpoint.api import ApiError, Service, arn, refused, runtime_refused
from container.endpoint.deployment import AlarmRule, Rollout
from container.endpoint.endpoint import Endpoint, Report
from container.endpoint.figures import VariantFigures
from container.endpoint.fleet import Fleet
from container.endpoint.process import Launcher
from container.endpoint.resources import Collection, Definition

_NOT_SUPPORTED = {
    "CreateModel": ("Containers", "InferenceExecutionConfig"),
    "PrimaryContainer": (
        "ModelDataUrl",
        "ModelPackageName",
        "AdditionalModelDataSources",
        "MultiModelConfig",
    ),
    "CreateEndpointConfig": ("ExplainerConfig", "DataCaptureConfig", "CrossRegionTrafficConfig"),
    "ProductionVariants": ("ServerlessConfig", "InstancePools", "ManagedInstanceScaling"),
}
"""Fields that change what an endpoint does, and are refused here."""


class Platform:
    """Everything that is deployed. Threads may share it: each name is added and removed in one operation."""

    def __init__(
        self, launcher: Launcher, report: Report, alarms: Mapping[str, AlarmRule] | None = None
    ) -> None:
        self.alarms = dict(alarms or {})
        self._launcher = launcher
        self._report = report
        self._service = Service("sagemaker")
        self._models: Collection[Definition] = Collection("Model", "model", "model")
        self._configs: Collection[Definition] = Collection(
            "EndpointConfig", "endpoint-config", "endpoint configuration"
        )
        self._endpoints: Collection[Endpoint] = Collection("Endpoint", "endpoint", "endpoint")
        self._ended: list[VariantFigures] = []
        self._operations: dict[str, Callable[[Mapping[str, Any]], dict[str, object]]] = {
            "CreateModel": self._create_model,
            "CreateEndpointConfig": self._create_endpoint_config,
            "CreateEndpoint": self._create_endpoint,
            "UpdateEndpoint": self._update_endpoint,
            "UpdateEndpointWeightsAndCapacities": self._scale,
            "DeleteEndpoint": self._delete_endpoint,
        }
        collections: tuple[Collection[Any], ...] = (self._models, self._configs, self._endpoints)
        for one in collections:
            self._operations[f"Describe{one.prefix}"] = one.describe
            self._operations[f"List{one.prefix}s"] = one.page
        for one in (self._models, self._configs):
            self._operations[f"Delete{one.prefix}"] = one.delete

    def call(self, operation: str, params: Mapping[str, Any]) -> dict[str, object]:
        """Carry out an operation. Raises ApiError."""
        if operation not in self._operations:
            raise ApiError("UnknownOperationException", f"{operation}: not supported by lmi endpoint")
        self._service.check(operation, params)
        return self._operations[operation](params)

    def endpoint(self, name: str) -> Endpoint:
        """The endpoint that an invocation names. Raises ApiError."""
        found = self._endpoints.find(name)
        if found is None:
            raise runtime_refused(f"Endpoint {name} not found.")
        return found

    def figures(self) -> list[VariantFigures]:
        """Of all variants since the start, deleted ones included."""
        return self._ended + [one for endpoint in self._endpoints.values() for one in endpoint.figures]

    def close(self) -> None:
        """End all endpoints, side by side."""
        endpoints = self._endpoints.values()
        with ThreadPoolExecutor(len(endpoints) or 1) as pool:
            for closed in [pool.submit(endpoint.close) for endpoint in endpoints]:
                closed.result()

    def _create_model(self, params: Mapping[str, Any]) -> dict[str, object]:
        _refuse(params, "CreateModel", "")
        container = params.get("PrimaryContainer")
        if container is None:
            raise refused("PrimaryContainer: missing")
        _refuse(container, "PrimaryContainer", "PrimaryContainer.")
        source = container.get("ModelDataSource", {}).get("S3DataSource", {})
        for field, only in (("S3DataType", "S3Prefix"), ("CompressionType", "None")):
            if source.get(field, only) != only:
                raise refused(
                    f"PrimaryContainer.ModelDataSource.S3DataSource.{field}: not supported here "
                    f"(got {source[field]}); allowed: {only}"
                )
        return self._models.add(params["ModelName"], Definition("Model", "model", params))

    def _create_endpoint_config(self, params: Mapping[str, Any]) -> dict[str, object]:
        _refuse(params, "CreateEndpointConfig", "")
        production, shadows = params["ProductionVariants"], params.get("ShadowProductionVariants", ())
        names = [variant["VariantName"] for variant in (*production, *shadows)]
        if len(set(names)) < len(names):
            raise refused(f"VariantName: each needs a name of its own (got {', '.join(names)})")
        if shadows and (len(production), len(shadows)) != (1, 1):
            raise refused(
                "ShadowProductionVariants: allowed: one shadow variant beside one production variant"
            )
        if "AsyncInferenceConfig" in params:
            output = params["AsyncInferenceConfig"]["OutputConfig"]
            if shadows or "S3OutputPath" not in output:
                raise refused("AsyncInferenceConfig: needs OutputConfig.S3OutputPath, and no shadow variants")
        for variant in (*production, *shadows):
            _refuse(variant, "ProductionVariants", f"ProductionVariants.{variant['VariantName']}.")
            if "ModelName" not in variant:
                raise refused(f"ProductionVariants.{variant['VariantName']}.ModelName: missing")
            self._models.get(variant["ModelName"])
        definition = Definition("EndpointConfig", "endpoint-config", params)
        return self._configs.add(params["EndpointConfigName"], definition)

    def _create_endpoint(self, params: Mapping[str, Any]) -> dict[str, object]:
        name = params["EndpointName"]
        fleet = self._fleet(name, params["EndpointConfigName"])
        endpoint = Endpoint(name, fleet, self._report)
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
            for name, variant in endpoint.fleet.variants.items():
                if name in green.variants and "DesiredWeight" not in excluded:
                    green.variants[name].weight = variant.weight
                if name in green.variants and "DesiredInstanceCount" not in excluded:
                    green.variants[name].count = variant.count
        deployment = params.get("DeploymentConfig", {})
        if params.get("RetainDeploymentConfig"):
            deployment = endpoint.last_deployment
        count = sum(variant.count for variant in green.variants.values())
        endpoint.update(green, Rollout.of(deployment, count, self.alarms), deployment)
        return {"EndpointArn": arn("endpoint", endpoint.name)}

    def _scale(self, params: Mapping[str, Any]) -> dict[str, object]:
        endpoint = self._endpoints.get(params["EndpointName"])
        endpoint.scale(
            {
                wanted["VariantName"]: (wanted.get("DesiredWeight"), wanted.get("DesiredInstanceCount"))
                for wanted in params["DesiredWeightsAndCapacities"]
            }
        )
        return {"EndpointArn": arn("endpoint", endpoint.name)}

    def _delete_endpoint(self, params: Mapping[str, Any]) -> dict[str, object]:
        endpoint = self._endpoints.get(params["EndpointName"])

        def removed() -> None:
            self._ended += endpoint.figures
            self._endpoints.remove(endpoint.name)

        endpoint.delete(removed)
        return {}

    def _fleet(self, endpoint: str, config: str) -> Fleet:
        fields = self._configs.get(config).fields
        variants = (*fields["ProductionVariants"], *fields.get("ShadowProductionVariants", ()))
        names = {variant["ModelName"] for variant in variants}
        containers = {name: self._models.get(name).fields["PrimaryContainer"] for name in names}
        return Fleet(endpoint, fields, containers, self._launcher)


def _refuse(fields: Mapping[str, Any], where: str, prefix: str) -> None:
    """Raises ApiError for fields that are not supported."""
    if found := [name for name in _NOT_SUPPORTED[where] if name in fields]:
        raise refused(f"{prefix}{found[0]}: not supported by lmi endpoint")
    if where == "PrimaryContainer" and fields.get("Mode", "SingleModel") != "SingleModel":
        raise refused(f"{prefix}Mode: not supported (got {fields['Mode']}); allowed: SingleModel")
