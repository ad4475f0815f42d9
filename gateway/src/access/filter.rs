//! Rules as clients write them: what is wrong with one, and filters that find rules.

use super::{ALLOW, ANY, ANY_NAME, CLUSTER_NAME, DENY, OPERATION_LAST, pattern, resource};
use rangeway_core::api::{ACL_BYTES_MAX, Acl};
use std::collections::BTreeSet;

/// Whether a rule can be kept.
///
/// Errors: what is wrong with it, in Kafka's words where it has some.
pub fn check(rule: &Acl) -> Result<(), String> {
    if !(resource::TOPIC..=resource::LAST).contains(&rule.resource) {
        return Err(format!("Invalid resource type {}", rule.resource));
    }
    if ![pattern::LITERAL, pattern::PREFIXED].contains(&rule.pattern) {
        return Err(format!("Invalid pattern type {}", rule.pattern));
    }
    if !(2..=OPERATION_LAST).contains(&rule.operation) {
        return Err(format!("Invalid operation type {}", rule.operation));
    }
    if ![DENY, ALLOW].contains(&rule.permission) {
        return Err(format!("Invalid permission type {}", rule.permission));
    }
    if rule.name.is_empty() {
        return Err("Resource name should not be empty".to_owned());
    }
    if rule.resource == resource::CLUSTER && rule.name != CLUSTER_NAME {
        return Err(format!("The only valid name for the CLUSTER resource is {CLUSTER_NAME}"));
    }
    if !rule.principal.contains(':') {
        let why = "no colon is present separating the principal type from the principal name";
        return Err(format!("Could not parse principal from `{}` ({why})", rule.principal));
    }
    let longest = [&rule.name, &rule.principal, &rule.host].into_iter().map(String::len).max().unwrap_or(0);
    if longest > ACL_BYTES_MAX {
        return Err(format!("a name of {longest} bytes; {ACL_BYTES_MAX} at most"));
    }
    Ok(())
}

/// Which rules are meant; `None` and the number [`ANY`]: whatever they say there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Type of the resources.
    pub resource: i8,
    /// Name of the resources.
    pub name: Option<String>,
    /// How the name is meant: literally, as a beginning, in any way, or as what the rules found are about.
    pub pattern: i8,
    /// Who.
    pub principal: Option<String>,
    /// From where.
    pub host: Option<String>,
    /// What.
    pub operation: i8,
    /// Denied or allowed.
    pub permission: i8,
}

impl Filter {
    /// Errors: what it asks for that there is not.
    pub fn check(&self) -> Result<(), String> {
        let number = |what: &str, got: i8, last: i8| match (ANY..=last).contains(&got) {
            true => Ok(()),
            false => Err(format!("Invalid {what} type {got}")),
        };
        number("resource", self.resource, resource::LAST)?;
        number("pattern", self.pattern, pattern::PREFIXED)?;
        number("operation", self.operation, OPERATION_LAST)?;
        number("permission", self.permission, ALLOW)
    }

    /// The rules that are meant, in order.
    pub fn of<'a>(&self, rules: &'a BTreeSet<Acl>) -> Vec<&'a Acl> {
        rules.iter().filter(|rule| self.means(rule)).collect()
    }

    fn means(&self, rule: &Acl) -> bool {
        let number = |wanted: i8, got: i8| wanted == ANY || wanted == got;
        let text = |wanted: &Option<String>, got: &str| wanted.as_ref().is_none_or(|wanted| wanted == got);
        number(self.resource, rule.resource)
            && self.names(rule)
            && text(&self.principal, &rule.principal)
            && text(&self.host, &rule.host)
            && number(self.operation, rule.operation)
            && number(self.permission, rule.permission)
    }

    fn names(&self, rule: &Acl) -> bool {
        let by_pattern = match self.pattern {
            pattern::ANY | pattern::MATCH => true,
            one => one == rule.pattern,
        };
        let Some(name) = &self.name else { return by_pattern };
        if self.pattern != pattern::MATCH {
            return by_pattern && *name == rule.name;
        }
        match rule.pattern {
            pattern::LITERAL => rule.name == *name || rule.name == ANY_NAME,
            _ => name.starts_with(&rule.name),
        }
    }
}
