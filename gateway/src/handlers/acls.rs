//! DescribeAcls (29), CreateAcls (30) and DeleteAcls (31), versions 1 to 3.
//!
//! v1: prefixed patterns (KIP-290). v2: flexible. v3: user as a resource type (KIP-373). No listener authenticates, so
//! there is nobody whom a rule could be about: all is refused with SECURITY_DISABLED, as Kafka does without an
//! authoriser.

use super::Context;
use super::configs::text;
use crate::protocol::dispatch::Close;
use kafka_protocol::ResponseError::SecurityDisabled;
use kafka_protocol::messages::create_acls_response::AclCreationResult;
use kafka_protocol::messages::delete_acls_response::DeleteAclsFilterResult;
use kafka_protocol::messages::{
    CreateAclsRequest, CreateAclsResponse, DeleteAclsRequest, DeleteAclsResponse, DescribeAclsRequest,
    DescribeAclsResponse,
};

const WHY: &str = "No Authorizer is configured.";

/// Refuses.
pub async fn describe(_: Context, _: DescribeAclsRequest) -> Result<DescribeAclsResponse, Close> {
    let why = text("No Authorizer is configured on the broker");
    Ok(DescribeAclsResponse::default().with_error_code(SecurityDisabled.code()).with_error_message(why))
}

/// Refuses each rule.
pub async fn create(_: Context, request: CreateAclsRequest) -> Result<CreateAclsResponse, Close> {
    let refused =
        AclCreationResult::default().with_error_code(SecurityDisabled.code()).with_error_message(text(WHY));
    Ok(CreateAclsResponse::default().with_results(vec![refused; request.creations.len()]))
}

/// Refuses each filter.
pub async fn delete(_: Context, request: DeleteAclsRequest) -> Result<DeleteAclsResponse, Close> {
    let refused = DeleteAclsFilterResult::default()
        .with_error_code(SecurityDisabled.code())
        .with_error_message(text(WHY));
    Ok(DeleteAclsResponse::default().with_filter_results(vec![refused; request.filters.len()]))
}
