//! Where partitions that a request names are kept, and a code for each of them in the request's order.

use super::words::{TOPIC_DENIED, UNKNOWN_TOPIC, client_topic};
use crate::groups::{GroupError, Key};
use rangeway_core::api::Catalog;

/// Where each partition goes, in order: a key, or a code at once.
pub(super) fn find<'a, P: Iterator<Item = i32>>(
    catalog: &Catalog,
    topics: impl Iterator<Item = (&'a str, P)>,
    may_read: impl Fn(&str) -> bool,
) -> Vec<Result<Key, i16>> {
    let mut places = Vec::new();
    for (name, partitions) in topics {
        let found = client_topic(catalog, name);
        let allowed = may_read(name);
        places.extend(partitions.map(|partition| match found {
            _ if !allowed => Err(TOPIC_DENIED),
            Some(view) if (0..view.partitions).contains(&partition) => Ok((view.id, partition)),
            _ => Err(UNKNOWN_TOPIC),
        }));
    }
    places
}

/// A code for each partition, asked for in order: of those that have a place the coordinator's, one each or one for all.
pub(super) fn codes(
    places: &[Result<Key, i16>],
    answers: Result<Vec<Result<(), GroupError>>, i16>,
) -> impl FnMut() -> i16 {
    let (all, mut answers) = match answers {
        Ok(answers) => (None, answers.into_iter()),
        Err(code) => (Some(code), Vec::new().into_iter()),
    };
    let mut places = places.iter();
    move || match (places.next(), all) {
        (Some(Ok(_)), Some(code)) => code,
        (Some(Ok(_)), None) => match answers.next() {
            Some(answer) => answer.err().map_or(0, GroupError::code),
            None => GroupError::NotAvailable.code(),
        },
        (Some(Err(code)), _) => *code,
        (None, _) => UNKNOWN_TOPIC,
    }
}
