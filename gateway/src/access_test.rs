//! Rules against what Kafka's standard authoriser says of them.

use super::*;

fn rule(kind: i8, pattern: i8, name: &str, who: &str, operation: i8, permission: i8) -> Acl {
    let (principal, host) = who.split_once('@').unwrap_or((who, "*"));
    Acl {
        resource: kind,
        pattern,
        name: name.to_owned(),
        principal: format!("User:{principal}"),
        host: host.to_owned(),
        operation,
        permission,
    }
}

fn topic(name: &str, who: &str, operation: i8, permission: i8) -> Acl {
    rule(resource::TOPIC, pattern::LITERAL, name, who, operation, permission)
}

struct Case {
    rules: BTreeSet<Acl>,
    principal: &'static str,
    super_users: Principals,
    everyone: bool,
}

fn case(rules: impl IntoIterator<Item = Acl>) -> Case {
    let (rules, super_users) = (rules.into_iter().collect(), Principals::default());
    Case { rules, principal: "User:a", super_users, everyone: false }
}

impl Case {
    fn asked(&self) -> Asked<'_> {
        let (super_users, everyone) = (&self.super_users, self.everyone);
        Asked { principal: self.principal, host: "10.0.0.1", super_users, everyone }
    }

    fn may(&self, operation: Operation, resource: Resource<'_>) -> bool {
        may(&self.rules, &self.asked(), operation, resource)
    }

    fn reads(&self, name: &str) -> bool {
        self.may(Operation::Read, Resource::Topic(name))
    }
}

#[test]
fn without_a_rule_all_or_nobody_may() {
    let mut of = case([topic("other", "a", 3, ALLOW)]);
    assert!(!of.reads("t"));
    of.everyone = true;
    assert!(of.reads("t"));
    assert!(!of.may(Operation::Write, Resource::Topic("other")), "a rule is about it, though not about this");
    of.everyone = false;
    of.super_users = Principals::of("User:x;User:a").expect("read");
    assert!(of.reads("t"));
}

#[test]
fn a_denial_wins_over_all_that_allows() {
    let of = case([topic("t", "a", 2, ALLOW), topic("*", "*", 3, DENY)]);
    assert!(!of.reads("t"));
    assert!(of.may(Operation::Write, Resource::Topic("t")));
    // Who may not read may still be seen to describe: a denial is of what it says alone.
    assert!(of.may(Operation::Describe, Resource::Topic("t")));
    assert!(!case([topic("t", "a", 3, ALLOW), topic("t", "*", 2, DENY)]).reads("t"));
}

#[test]
fn rights_that_bring_others_with_them() {
    for (operation, describes) in
        [(3, true), (4, true), (6, true), (7, true), (8, true), (5, false), (11, false)]
    {
        let of = case([topic("t", "a", operation, ALLOW)]);
        assert_eq!(of.may(Operation::Describe, Resource::Topic("t")), describes, "{operation}");
        assert_eq!(of.may(Operation::DescribeConfigs, Resource::Topic("t")), operation == 11, "{operation}");
    }
    let of = case([topic("t", "a", 3, DENY), topic("t", "a", 2, ALLOW)]);
    assert!(of.may(Operation::Describe, Resource::Topic("t")));
}

#[test]
fn rules_are_about_principals_hosts_and_names() {
    let of = |one: Acl| case([one]).reads("orders.eu");
    assert!(of(topic("orders.eu", "*", 3, ALLOW)) && of(topic("*", "a", 3, ALLOW)));
    assert!(!of(topic("orders.eu", "b", 3, ALLOW)) && !of(topic("orders", "a", 3, ALLOW)));
    assert!(
        of(topic("orders.eu", "a@10.0.0.1", 3, ALLOW)) && !of(topic("orders.eu", "a@10.0.0.2", 3, ALLOW))
    );
    let prefixed = |name: &str| rule(resource::TOPIC, pattern::PREFIXED, name, "a", 3, ALLOW);
    for (name, fits) in
        [("o", true), ("orders.", true), ("orders.eu", true), ("orders.eu2", false), ("*", false)]
    {
        assert_eq!(of(prefixed(name)), fits, "{name}");
    }
    // Kinds of resources never mix.
    let of = case([rule(resource::GROUP, pattern::PREFIXED, "o", "a", 2, ALLOW)]);
    assert!(!of.reads("orders") && of.may(Operation::Read, Resource::Group("orders")));
    assert!(!of.may(Operation::Read, Resource::Transaction("orders")));
    let of = case([rule(resource::CLUSTER, pattern::LITERAL, CLUSTER_NAME, "a", 5, ALLOW)]);
    assert!(of.may(Operation::Create, Resource::Cluster) && !of.may(Operation::Alter, Resource::Cluster));
}

#[test]
fn names_of_any_letters_have_beginnings() {
    assert_eq!(beginnings("aäb").collect::<Vec<_>>(), ["a", "aä", "aäb"]);
    assert_eq!(beginnings("").count(), 0);
}

#[test]
fn some_topic_may_be_written_unless_all_that_is_allowed_is_denied() {
    let some = |rules: Vec<Acl>| {
        let of = case(rules);
        may_write_some_topic(&of.rules, &of.asked())
    };
    let prefixed =
        |name: &str, permission| rule(resource::TOPIC, pattern::PREFIXED, name, "a", 4, permission);
    assert!(
        !some(vec![]) && !some(vec![topic("t", "a", 3, ALLOW)]) && !some(vec![topic("t", "b", 4, ALLOW)])
    );
    assert!(some(vec![topic("t", "a", 4, ALLOW)]) && some(vec![topic("t", "a", 2, ALLOW)]));
    assert!(!some(vec![topic("t", "a", 4, ALLOW), topic("t", "*", 4, DENY)]));
    assert!(!some(vec![topic("team.t", "a", 4, ALLOW), prefixed("team.", DENY)]));
    assert!(some(vec![prefixed("te", ALLOW), prefixed("team.", DENY)]));
    assert!(!some(vec![topic("*", "a", 4, ALLOW), topic("*", "a", 4, DENY)]));
    assert!(some(vec![topic("*", "a", 4, ALLOW), prefixed("t", DENY)]));
}

#[test]
fn filters_find_rules_as_they_are_written_or_by_what_they_are_about() {
    let prefixed = rule(resource::TOPIC, pattern::PREFIXED, "or", "a", 3, ALLOW);
    let rules: BTreeSet<Acl> = [
        topic("orders", "a", 3, ALLOW),
        topic("*", "b", 4, DENY),
        prefixed,
        rule(resource::GROUP, pattern::LITERAL, "orders", "a", 3, ALLOW),
    ]
    .into();
    let any = Filter {
        resource: ANY,
        name: None,
        pattern: pattern::ANY,
        principal: None,
        host: None,
        operation: ANY,
        permission: ANY,
    };
    let count = |filter: Filter| {
        assert_eq!(filter.check(), Ok(()));
        filter.of(&rules).len()
    };
    let orders = || Filter { name: Some("orders".to_owned()), ..any.clone() };
    assert_eq!(count(any.clone()), 4);
    assert_eq!(count(orders()), 2);
    assert_eq!(count(Filter { resource: resource::TOPIC, pattern: pattern::MATCH, ..orders() }), 3);
    assert_eq!(count(Filter { pattern: pattern::LITERAL, ..orders() }), 2);
    assert_eq!(count(Filter { pattern: pattern::PREFIXED, ..orders() }), 0);
    assert_eq!(count(Filter { pattern: pattern::PREFIXED, ..any.clone() }), 1);
    assert_eq!(count(Filter { principal: Some("User:b".to_owned()), ..any.clone() }), 1);
    assert_eq!(count(Filter { operation: 4, permission: ALLOW, ..any.clone() }), 0);
    for wrong in [
        Filter { resource: 0, ..any.clone() },
        Filter { pattern: 5, ..any.clone() },
        Filter { permission: 9, ..any },
    ] {
        assert!(wrong.check().is_err());
    }
}

#[test]
fn a_rule_that_says_nothing_definite_is_refused() {
    let good = topic("t", "a", 3, ALLOW);
    assert_eq!(check(&good), Ok(()));
    let wrong = [
        Acl { resource: 1, ..good.clone() },
        Acl { pattern: pattern::MATCH, ..good.clone() },
        Acl { operation: 1, ..good.clone() },
        Acl { permission: 1, ..good.clone() },
        Acl { name: String::new(), ..good.clone() },
        Acl { name: "x".repeat(2000), ..good.clone() },
        Acl { principal: "a".to_owned(), ..good.clone() },
        Acl { resource: resource::CLUSTER, ..good },
    ];
    wrong.iter().for_each(|rule| assert!(check(rule).is_err(), "{rule:?}"));
}
