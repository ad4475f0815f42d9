//! From what members subscribe to, to topics.

use super::image::{ConsumerImage, Subscription};
use super::re2j;
use rangeway_core::api::Catalog;
use rangeway_core::types::TopicId;
use regex::{Regex, RegexBuilder};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// Memory that one compiled pattern may take, bytes.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// Compiles a pattern that has to match a topic's whole name. The language is RE2J's, as in Kafka (KIP-848): matching takes
/// linear time whatever the pattern.
pub(super) fn compile(pattern: &str) -> Result<Regex, String> {
    let why = |what: &dyn std::fmt::Display| {
        format!("SubscribedTopicRegex `{pattern}` is not a valid regular expression: {what}.")
    };
    let translated = re2j::translate(pattern).map_err(|e| why(&e))?;
    // In a group of its own flags that are set within do not reach the anchors.
    regex_of(&format!("^(?:{translated})$")).map_err(|e| why(&e))
}

/// A pattern that is stored: an older program may have taken what RE2J does not, in the words of the `regex` crate.
fn compile_stored(pattern: &str) -> Result<Regex, String> {
    compile(pattern).or_else(|why| regex_of(&format!("^(?:{pattern})$")).map_err(|_| why))
}

fn regex_of(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(REGEX_BYTES_MAX).dfa_size_limit(REGEX_BYTES_MAX).build()
}

/// Looks topics up; every pattern is matched once.
pub(super) struct Resolver<'a> {
    catalog: &'a Catalog,
    matched: HashMap<String, BTreeSet<TopicId>>,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(catalog: &'a Catalog) -> Resolver<'a> {
        Resolver { catalog, matched: HashMap::new() }
    }

    /// The topics that a member subscribes to and that exist.
    pub(super) fn topics(&mut self, subscription: &Subscription) -> BTreeSet<TopicId> {
        let by_name = subscription.topics.iter().filter_map(|name| self.catalog.by_name.get(name.as_str()));
        let mut topics: BTreeSet<TopicId> = by_name.filter(|t| !t.internal).map(|t| t.id).collect();
        if let Some(pattern) = &subscription.regex {
            topics.extend(self.matching(pattern));
        }
        topics
    }

    /// Topics of all members, with their partition counts.
    pub(super) fn all(&mut self, image: &ConsumerImage) -> BTreeMap<TopicId, i32> {
        let mut topics = BTreeSet::new();
        for member in image.members.values() {
            topics.extend(self.topics(&member.subscription));
        }
        let catalog = self.catalog;
        topics.into_iter().filter_map(|id| Some((id, catalog.by_id.get(&id)?.partitions))).collect()
    }

    fn matching(&mut self, pattern: &str) -> BTreeSet<TopicId> {
        if let Some(found) = self.matched.get(pattern) {
            return found.clone();
        }
        let found: BTreeSet<TopicId> = match compile_stored(pattern) {
            Ok(regex) => {
                // What is shown of the groups' offsets too, as in Kafka, which leaves no internal topic out.
                let topics = self.catalog.by_name.values().filter(|t| !t.internal);
                let topics = topics.filter(|t| regex.is_match(&t.name));
                topics.map(|t| t.id).collect()
            }
            // It was compiled when it came: an older program stored it, or a newer one.
            Err(why) => {
                tracing::warn!(pattern, why, "a stored subscription matches nothing");
                BTreeSet::new()
            }
        };
        self.matched.insert(pattern.to_owned(), found.clone());
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        compile(pattern).expect("a pattern").is_match(name)
    }

    #[test]
    fn a_pattern_has_to_match_the_whole_name() {
        assert!(matches("orders-.*", "orders-eu"));
        assert!(!matches("orders", "orders-eu"));
        assert!(!matches("eu", "orders-eu"));
        assert!(matches("a|b.*", "bc"));
        assert!(!matches("a|b", "bc"), "alternatives are anchored together");
        assert!(matches("(?i)Orders", "oRDERS"));
        assert!(matches("", ""));
    }

    #[test]
    fn what_is_no_pattern_is_told() {
        for bad in ["[", "(", "a)|(b", "a{1000}{1000}{1000}", r"(a)\1", "(?=a)", "x*+", r"\p{Alpha}"] {
            assert!(compile(bad).is_err(), "{bad}");
        }
        for takes_much in [r"[\p{L}\p{N}]{1000}[\p{L}\p{N}]{1000}", "(a{1000}){1000}"] {
            assert!(compile(takes_much).is_err(), "what it would take of memory is bounded: {takes_much}");
        }
    }

    #[test]
    fn what_an_older_program_took_goes_on_matching() {
        assert!(compile(r"t\u{61}").is_err());
        assert!(compile_stored(r"t\u{61}").expect("stored").is_match("ta"));
        assert!(compile_stored("[").is_err());
    }

    #[test]
    fn a_pattern_that_takes_others_ages_takes_none() {
        let name = "a".repeat(249);
        assert!(!matches("(a*)*(a*)*(a*)*b", &name));
    }
}
