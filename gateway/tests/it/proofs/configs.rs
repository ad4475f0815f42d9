//! Configs: shown and changed.

use super::proofs;
use crate::support::{Client, Topic};
use kafka_protocol::messages as m;
use kafka_protocol::messages::alter_configs_request as replace;
use kafka_protocol::messages::describe_configs_request::DescribeConfigsResource;
use kafka_protocol::messages::describe_configs_response::DescribeConfigsResourceResult;
use kafka_protocol::messages::incremental_alter_configs_request as change;
use kafka_protocol::protocol::StrBytes;

const TOPIC: i8 = 2;

fn text(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}

/// One config of a resource, as DescribeConfigs shows it.
pub async fn config(
    c: &mut Client,
    version: i16,
    (kind, name): (i8, &str),
    key: &str,
) -> DescribeConfigsResourceResult {
    let resource = DescribeConfigsResource::default()
        .with_resource_type(kind)
        .with_resource_name(text(name))
        .with_configuration_keys(Some(vec![text(key)]));
    let request = m::DescribeConfigsRequest::default()
        .with_resources(vec![resource])
        .with_include_synonyms(true)
        .with_include_documentation(version >= 3);
    let mut response = c.call(version, request).await;
    let result = response.results.remove(0);
    assert_eq!((result.error_code, result.configs.len()), (0, 1), "{:?}", result.error_message);
    result.configs.into_iter().next().unwrap()
}

async fn shown(c: &mut Client, t: &Topic, key: &str) -> (String, i8) {
    let row = config(c, 4, (TOPIC, &t.name), key).await;
    (row.value.unwrap().to_string(), row.config_source)
}

proofs! {
    a_topics_configs_are_shown: DescribeConfigsRequest 1..=4, |c, version| {
        let t = c.topic(1, &[("retention.ms", "5000")]).await;
        let row = config(c, version, (TOPIC, &t.name), "retention.ms").await;
        let synonyms: Vec<_> =
            row.synonyms.iter().map(|s| (s.name.as_str(), s.value.as_ref().unwrap().as_str(), s.source)).collect();
        assert_eq!(row.value.unwrap().as_str(), "5000");
        assert_eq!((row.config_source, row.read_only, row.is_sensitive), (1, false, false));
        assert_eq!(synonyms, [("retention.ms", "5000", 1), ("log.retention.ms", "604800000", 5)]);
        if version >= 3 {
            assert_eq!(row.config_type, 5, "LONG");
            assert!(row.documentation.unwrap().ends_with("never."));
        }
    }
    a_config_is_changed: IncrementalAlterConfigsRequest 0..=1, |c, version| {
        let t = c.topic(1, &[("segment.ms", "60000")]).await;
        let mut alter = async |key: &str, operation: i8, value: Option<&str>| {
            let config = change::AlterableConfig::default()
                .with_name(text(key))
                .with_config_operation(operation)
                .with_value(value.map(text));
            let resource = change::AlterConfigsResource::default()
                .with_resource_type(TOPIC)
                .with_resource_name(text(&t.name))
                .with_configs(vec![config]);
            let request = m::IncrementalAlterConfigsRequest::default().with_resources(vec![resource]);
            c.call(version, request).await.responses[0].error_code
        };
        assert_eq!(alter("retention.ms", 0, Some("7000")).await, 0);
        assert_eq!(alter("segment.ms", 1, None).await, 0);
        assert_eq!(alter("no.such.config", 0, Some("1")).await, 40);
        assert_eq!(shown(c, &t, "retention.ms").await, ("7000".to_owned(), 1));
        assert_eq!(shown(c, &t, "segment.ms").await, ("604800000".to_owned(), 5));
    }
    all_configs_are_replaced: AlterConfigsRequest 0..=2, |c, version| {
        let t = c.topic(1, &[("segment.ms", "60000")]).await;
        let config = replace::AlterableConfig::default().with_name(text("retention.ms")).with_value(Some(text("7000")));
        let resource = replace::AlterConfigsResource::default()
            .with_resource_type(TOPIC)
            .with_resource_name(text(&t.name))
            .with_configs(vec![config]);
        let request = m::AlterConfigsRequest::default().with_resources(vec![resource]);
        let checked = c.call(version, request.clone().with_validate_only(true)).await;
        assert_eq!(checked.responses[0].error_code, 0);
        assert_eq!(shown(c, &t, "segment.ms").await, ("60000".to_owned(), 1));
        assert_eq!(c.call(version, request).await.responses[0].error_code, 0);
        assert_eq!(shown(c, &t, "retention.ms").await, ("7000".to_owned(), 1));
        assert_eq!(shown(c, &t, "segment.ms").await, ("604800000".to_owned(), 5));
    }
    what_has_configs_is_named: ListConfigResourcesRequest 0..=1, |c, version| {
        let t = c.topic(1, &[]).await;
        let response = c.call(version, m::ListConfigResourcesRequest::default()).await;
        assert_eq!(response.error_code, 0);
        let named = |kind: i8, name: &str| {
            response.config_resources.iter().any(|r| r.resource_type == kind && r.resource_name.as_str() == name)
        };
        assert_eq!(named(TOPIC, &t.name), version >= 1);
        assert_eq!(named(4, "7"), version >= 1);
        if version == 0 {
            assert_eq!(response.config_resources, [], "no client metrics");
            return;
        }
        let one = m::ListConfigResourcesRequest::default().with_resource_types(vec![4]);
        assert_eq!(c.call(version, one).await.config_resources.len(), 1);
        let unknown = m::ListConfigResourcesRequest::default().with_resource_types(vec![5]);
        assert_eq!(c.call(version, unknown).await.error_code, 35);
    }
}
