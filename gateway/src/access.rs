//! Who may do what: access rules (KIP-11, KIP-290) and how they are judged, as Kafka's standard authoriser does. Pure: the rules are kept by core's
//! control state, and asked about by the handlers.

use rangeway_core::api::Acl;
use rangeway_core::config::access::Principals;
use std::collections::BTreeSet;
use std::sync::Arc;

mod filter;

pub use filter::{Filter, check};

/// The name under which rules about the cluster as a whole stand.
pub const CLUSTER_NAME: &str = "kafka-cluster";
/// As a principal's name, a host or a literal name: any.
pub const ANY_NAME: &str = "*";
/// Everybody.
const EVERYBODY: &str = "User:*";

/// Types of resources, in Kafka's numbers.
pub mod resource {
    /// A topic.
    pub const TOPIC: i8 = 2;
    /// A group.
    pub const GROUP: i8 = 3;
    /// The cluster.
    pub const CLUSTER: i8 = 4;
    /// A transactional id.
    pub const TRANSACTION: i8 = 5;
    /// The highest: a user.
    pub const LAST: i8 = 7;
}

/// How a name is meant, in Kafka's numbers.
pub mod pattern {
    /// In filters: in any way.
    pub const ANY: i8 = 1;
    /// In filters: rules that are about this name.
    pub const MATCH: i8 = 2;
    /// The name itself.
    pub const LITERAL: i8 = 3;
    /// All names that begin so.
    pub const PREFIXED: i8 = 4;
}

/// In filters: any operation, permission or type.
pub const ANY: i8 = 1;
const ALL: i8 = 2;
/// The highest number of an operation: TWO_PHASE_COMMIT.
pub const OPERATION_LAST: i8 = 15;
/// Permissions, in Kafka's numbers.
pub const DENY: i8 = 2;
/// See [`DENY`].
pub const ALLOW: i8 = 3;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    /// `User:ANONYMOUS` until listeners authenticate.
    pub name: Arc<str>,
}

impl Principal {
    /// The principal of a listener without authentication.
    pub fn anonymous() -> Principal {
        Principal { name: Arc::from("User:ANONYMOUS") }
    }
}

/// What is asked to be done.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Nothing that needs a grant.
    None,
    /// Read records or offsets.
    Read,
    /// Write records.
    Write,
    /// Create a topic.
    Create,
    /// Delete a topic, a group or records.
    Delete,
    /// Change a topic.
    Alter,
    /// See that it exists and what shape it has.
    Describe,
    /// See configs.
    DescribeConfigs,
    /// Change configs.
    AlterConfigs,
    /// What brokers do among themselves.
    ClusterAction,
    /// Write idempotently.
    IdempotentWrite,
}

/// What it is done to.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Resource<'a> {
    /// The cluster as a whole.
    Cluster,
    /// A topic by name.
    Topic(&'a str),
    /// A group by id.
    Group(&'a str),
    /// A transactional id.
    Transaction(&'a str),
}

impl Operation {
    /// Kafka's number; [`Operation::None`] has none.
    pub fn number(self) -> i8 {
        match self {
            Operation::None => 0,
            Operation::Read => 3,
            Operation::Write => 4,
            Operation::Create => 5,
            Operation::Delete => 6,
            Operation::Alter => 7,
            Operation::Describe => 8,
            Operation::ClusterAction => 9,
            Operation::DescribeConfigs => 10,
            Operation::AlterConfigs => 11,
            Operation::IdempotentWrite => 12,
        }
    }

    /// Numbers of the operations that a rule may allow so that this one is allowed too.
    fn allowed_by(self) -> &'static [i8] {
        match self {
            Operation::None => &[],
            Operation::Read => &[3],
            Operation::Write => &[4],
            Operation::Create => &[5],
            Operation::Delete => &[6],
            Operation::Alter => &[7],
            Operation::Describe => &[8, 3, 4, 6, 7],
            Operation::ClusterAction => &[9],
            Operation::DescribeConfigs => &[10, 11],
            Operation::AlterConfigs => &[11],
            Operation::IdempotentWrite => &[12],
        }
    }
}

impl<'a> Resource<'a> {
    /// Kafka's number of its type, and its name.
    fn parts(self) -> (i8, &'a str) {
        match self {
            Resource::Cluster => (resource::CLUSTER, CLUSTER_NAME),
            Resource::Topic(name) => (resource::TOPIC, name),
            Resource::Group(name) => (resource::GROUP, name),
            Resource::Transaction(name) => (resource::TRANSACTION, name),
        }
    }
}

/// Who asks, and what holds where no rule says anything.
#[derive(Copy, Clone, Debug)]
pub struct Asked<'a> {
    /// Such as `User:ANONYMOUS`.
    pub principal: &'a str,
    /// The client's address.
    pub host: &'a str,
    /// Who may do everything.
    pub super_users: &'a Principals,
    /// Whether all may do everything to what no rule is about.
    pub everyone: bool,
}

impl Asked<'_> {
    /// Whether the rule is about whoever asks.
    fn is_meant(&self, rule: &Acl) -> bool {
        (rule.principal == self.principal || rule.principal == EVERYBODY)
            && (rule.host == self.host || rule.host == ANY_NAME)
    }
}

/// Whether `operation` may be done to `resource`: a rule that denies it wins over all that allow it.
pub fn may(rules: &BTreeSet<Acl>, asked: &Asked<'_>, operation: Operation, resource: Resource<'_>) -> bool {
    if operation == Operation::None || asked.super_users.contain(asked.principal) {
        return true;
    }
    let (kind, name) = resource.parts();
    let (mut any, mut allowed) = (false, false);
    for rule in about(rules, kind, name) {
        any = true;
        if !asked.is_meant(rule) {
            continue;
        }
        let names = |operations: &[i8]| rule.operation == ALL || operations.contains(&rule.operation);
        match rule.permission {
            DENY if names(&[operation.number()]) => return false,
            ALLOW if names(operation.allowed_by()) => allowed = true,
            _ => {}
        }
    }
    allowed || (!any && asked.everyone)
}

/// Whether there may be a topic that whoever asks may write to: a rule allows it, and none denies all that it allows.
pub fn may_write_some_topic(rules: &BTreeSet<Acl>, asked: &Asked<'_>) -> bool {
    // Any name will do: it is allowed to super users, and where no rule is needed.
    if may(rules, asked, Operation::Write, Resource::Topic("hardcode")) {
        return true;
    }
    let write = Operation::Write.number();
    let meant: Vec<&Acl> = rules
        .iter()
        .filter(|rule| rule.resource == resource::TOPIC && asked.is_meant(rule))
        .filter(|rule| rule.operation == ALL || rule.operation == write)
        .collect();
    let denied = |pattern: i8, name: &str| {
        meant.iter().any(|rule| rule.permission == DENY && rule.pattern == pattern && rule.name == name)
    };
    if denied(pattern::LITERAL, ANY_NAME) {
        return false;
    }
    let allows = |rule: &&&Acl| rule.permission == ALLOW;
    meant.iter().filter(allows).any(|rule| {
        let is_any = rule.pattern == pattern::LITERAL && rule.name == ANY_NAME;
        let by_literal = rule.pattern == pattern::LITERAL && denied(pattern::LITERAL, &rule.name);
        is_any || !(by_literal || beginnings(&rule.name).any(|start| denied(pattern::PREFIXED, start)))
    })
}

/// The rules about a resource of this name.
fn about<'a>(rules: &'a BTreeSet<Acl>, kind: i8, name: &str) -> impl Iterator<Item = &'a Acl> {
    let literally = named(rules, kind, pattern::LITERAL, name);
    let all = if name == ANY_NAME { None } else { Some(named(rules, kind, pattern::LITERAL, ANY_NAME)) };
    let first = Acl { name: String::new(), ..least(kind, pattern::PREFIXED, "") };
    let prefixed = rules.range(first..).next();
    let prefixed = prefixed.is_some_and(|rule| rule.resource == kind && rule.pattern == pattern::PREFIXED);
    let starts: Vec<&str> = if prefixed { beginnings(name).collect() } else { Vec::new() };
    let beginning: Vec<&Acl> =
        starts.into_iter().flat_map(|start| named(rules, kind, pattern::PREFIXED, start)).collect();
    literally.chain(all.into_iter().flatten()).chain(beginning)
}

/// Rules that stand under exactly this type, pattern and name.
fn named<'a>(
    rules: &'a BTreeSet<Acl>,
    kind: i8,
    pattern: i8,
    name: &str,
) -> impl Iterator<Item = &'a Acl> + use<'a> {
    let first = least(kind, pattern, name);
    let name = first.name.clone();
    rules
        .range(first..)
        .take_while(move |rule| rule.resource == kind && rule.pattern == pattern && rule.name == name)
}

/// Comes before all rules of this type, pattern and name.
fn least(kind: i8, pattern: i8, name: &str) -> Acl {
    let none = String::new;
    Acl {
        resource: kind,
        pattern,
        name: name.to_owned(),
        principal: none(),
        host: none(),
        operation: i8::MIN,
        permission: i8::MIN,
    }
}

/// What a name begins with, all of it last.
fn beginnings(name: &str) -> impl Iterator<Item = &str> {
    name.char_indices().map(|(at, char)| name.get(..at + char.len_utf8()).unwrap_or(name))
}

#[cfg(test)]
#[path = "access_test.rs"]
mod access_test;
