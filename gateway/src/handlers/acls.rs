//! DescribeAcls (29), CreateAcls (30) and DeleteAcls (31), versions 1 to 3.
//!
//! v1: prefixed patterns (KIP-290). v2: flexible. v3: user as a resource type (KIP-373). Without an authoriser all is refused with
//! SECURITY_DISABLED, as Kafka does. Rules that one request adds or takes away become one change of the control state.

use super::configs::text;
use super::{Context, Operation, Resource};
use crate::access::{self, Filter};
use crate::protocol::dispatch::Close;
use crate::protocol::errors;
use kafka_protocol::ResponseError::{self, ClusterAuthorizationFailed, InvalidRequest, SecurityDisabled};
use kafka_protocol::messages::create_acls_request::AclCreation;
use kafka_protocol::messages::create_acls_response::AclCreationResult;
use kafka_protocol::messages::delete_acls_request::DeleteAclsFilter;
use kafka_protocol::messages::delete_acls_response::{DeleteAclsFilterResult, DeleteAclsMatchingAcl};
use kafka_protocol::messages::describe_acls_response::{AclDescription, DescribeAclsResource};
use kafka_protocol::messages::{
    CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse, DescribeAclsRequest,
    DescribeAclsResponse,
};
use kafka_protocol::protocol::StrBytes;
use rangeway_core::api::{ACLS_MAX, Acl};
use rangeway_core::config::access::Authorizer;
use std::collections::BTreeSet;

/// Why something is refused: the code, and a sentence.
type Refused = (ResponseError, String);

/// Shows rules that a filter finds, those of one resource together.
pub async fn describe(context: Context, request: DescribeAclsRequest) -> Result<DescribeAclsResponse, Close> {
    let filter = Filter {
        resource: request.resource_type_filter,
        name: request.resource_name_filter.map(|name| name.to_string()),
        pattern: request.pattern_type_filter,
        principal: request.principal_filter.map(|principal| principal.to_string()),
        host: request.host_filter.map(|host| host.to_string()),
        operation: request.operation,
        permission: request.permission_type,
    };
    let found = may(&context, Operation::Describe).and_then(|()| {
        filter.check().map_err(invalid)?;
        Ok(described(&filter.of(&context.api.acls())))
    });
    Ok(match found {
        Ok(resources) => DescribeAclsResponse::default().with_resources(resources),
        Err((code, why)) => {
            DescribeAclsResponse::default().with_error_code(code.code()).with_error_message(text(why))
        }
    })
}

/// Rules in order, those of one resource together.
fn described(rules: &[&Acl]) -> Vec<DescribeAclsResource> {
    let of_one = |a: &&Acl, b: &&Acl| (a.resource, a.pattern, &a.name) == (b.resource, b.pattern, &b.name);
    let row = |rule: &&Acl| {
        AclDescription::default()
            .with_principal(wire(&rule.principal))
            .with_host(wire(&rule.host))
            .with_operation(rule.operation)
            .with_permission_type(rule.permission)
    };
    let resource = |rules: &[&Acl]| {
        let first = rules.first()?;
        let resource = DescribeAclsResource::default()
            .with_resource_type(first.resource)
            .with_resource_name(wire(&first.name))
            .with_pattern_type(first.pattern)
            .with_acls(rules.iter().map(row).collect());
        Some(resource)
    };
    rules.chunk_by(of_one).filter_map(resource).collect()
}

/// Adds the rules that can be kept; the others are refused, each with its reason.
pub async fn create(context: Context, request: CreateAclsRequest) -> Result<CreateAclsResponse, Close> {
    let mut judged = match may(&context, Operation::Alter) {
        Ok(()) => request.creations.iter().map(rule).collect::<Vec<_>>(),
        Err(refused) => vec![Err(refused); request.creations.len()],
    };
    let add: Vec<Acl> = judged.iter().flatten().cloned().collect();
    if !add.is_empty()
        && let Err(refused) = change(&context, add, Vec::new()).await
    {
        judged.iter_mut().filter(|one| one.is_ok()).for_each(|one| *one = Err(refused.clone()));
    }
    let result = |one: Result<Acl, Refused>| match one {
        Ok(_) => AclCreationResult::default(),
        Err((code, why)) => {
            AclCreationResult::default().with_error_code(code.code()).with_error_message(text(why))
        }
    };
    Ok(CreateAclsResponse::default().with_results(judged.into_iter().map(result).collect()))
}

fn rule(asked: &AclCreation) -> Result<Acl, Refused> {
    let rule = Acl {
        resource: asked.resource_type,
        pattern: asked.resource_pattern_type,
        name: asked.resource_name.to_string(),
        principal: asked.principal.to_string(),
        host: asked.host.to_string(),
        operation: asked.operation,
        permission: asked.permission_type,
    };
    access::check(&rule).map_err(invalid)?;
    Ok(rule)
}

/// Takes away the rules that the filters find.
pub async fn delete(context: Context, request: DeleteAclsRequest) -> Result<DeleteAclsResponse, Close> {
    let rules = context.api.acls();
    let judged = match may(&context, Operation::Alter) {
        Ok(()) => request.filters.iter().map(|asked| found(asked, &rules)).collect::<Vec<_>>(),
        Err(refused) => vec![Err(refused); request.filters.len()],
    };
    let remove: BTreeSet<&Acl> = judged.iter().flatten().flatten().copied().collect();
    let changed = match remove.is_empty() {
        true => Ok(()),
        false => change(&context, Vec::new(), remove.into_iter().cloned().collect()).await,
    };
    let results = judged.into_iter().map(|one| match one.and_then(|found| changed.clone().map(|()| found)) {
        Ok(found) => {
            DeleteAclsFilterResult::default().with_matching_acls(found.into_iter().map(matching).collect())
        }
        Err((code, why)) => {
            DeleteAclsFilterResult::default().with_error_code(code.code()).with_error_message(text(why))
        }
    });
    Ok(DeleteAclsResponse::default().with_filter_results(results.collect()))
}

fn found<'a>(asked: &DeleteAclsFilter, rules: &'a BTreeSet<Acl>) -> Result<Vec<&'a Acl>, Refused> {
    let own = |text: &Option<StrBytes>| text.as_ref().map(|text| text.to_string());
    let filter = Filter {
        resource: asked.resource_type_filter,
        name: own(&asked.resource_name_filter),
        pattern: asked.pattern_type_filter,
        principal: own(&asked.principal_filter),
        host: own(&asked.host_filter),
        operation: asked.operation,
        permission: asked.permission_type,
    };
    filter.check().map_err(invalid)?;
    Ok(filter.of(rules))
}

fn matching(rule: &Acl) -> DeleteAclsMatchingAcl {
    DeleteAclsMatchingAcl::default()
        .with_resource_type(rule.resource)
        .with_resource_name(wire(&rule.name))
        .with_pattern_type(rule.pattern)
        .with_principal(wire(&rule.principal))
        .with_host(wire(&rule.host))
        .with_operation(rule.operation)
        .with_permission_type(rule.permission)
}

/// Whether rules may be seen or changed at all.
fn may(context: &Context, operation: Operation) -> Result<(), Refused> {
    if context.shared.settings.node.authorizer == Authorizer::None {
        return Err((SecurityDisabled, "No Authorizer is configured.".to_owned()));
    }
    match context.authorize(operation, Resource::Cluster) {
        true => Ok(()),
        false => Err((ClusterAuthorizationFailed, "not allowed to see or change access rules".to_owned())),
    }
}

async fn change(context: &Context, add: Vec<Acl>, remove: Vec<Acl>) -> Result<(), Refused> {
    let (added, removed) = (add.len(), remove.len());
    if added > 0 && context.api.acls().len() + added > ACLS_MAX {
        return Err(invalid(format!("{ACLS_MAX} access rules at most")));
    }
    context.api.alter_acls(add, remove).await.map_err(|error| (errors::topic(&error), error.to_string()))?;
    tracing::info!(principal = &*context.principal.name, added, removed, "access rules changed");
    Ok(())
}

fn invalid(why: String) -> Refused {
    (InvalidRequest, why)
}

fn wire(text: &str) -> StrBytes {
    StrBytes::from_string(text.to_owned())
}
