"""Services of people who run computers. `descriptions.py` explains their format."""

DESCRIPTIONS = """
service hosts | Machines in the data centre.
record host HO name
name mix(atlas|borealis|castor|draco|electra, one|two|three|four) | Host name.
rack code(RCK) | Where it is mounted.
memory_gb int(8..512) | Memory in gigabytes.
admin person | Who looks after it.
system one(debian|fedora|alpine|freebsd) | Operating system.
states running drained off
find_host find | Look a machine up by its host name.
get_host get | Rack, memory, administrator and operating system of one machine.
list_hosts list system | Machines, all or with one operating system.
rack_host create name,rack,memory_gb,admin,system | Mount a new machine.
change_host_admin set admin | Make somebody else look after a machine.
upgrade_memory set memory_gb | Fit a machine with more or less memory.
drain_host move running drained | Take the work off a machine before maintenance.
power_off_host move drained off | Switch a machine without work off.
power_on_host move off,drained running | Put a machine to work again.

service deployments | Versions of programs that are rolled out.
record deployment DP application
application mix(cart|search|login|mail|photo, frontend|backend|worker) | Which program.
version code(REL) | What is rolled out.
replicas int(1..20) | Copies that run.
owner person | Whom to ask.
stage one(test|staging|production) | Where it runs.
states live paused rolled_back
find_deployment find | Look a rollout up by the program's name.
get_deployment get | Version, copies, owner and stage of one rollout.
list_deployments list stage | Rollouts, all or in one stage.
deploy_version set version | Roll another release of a program out.
scale_deployment set replicas | Run more or fewer copies of a program.
promote_deployment set stage | Let a program run in another stage.
pause_rollout move live paused | Stop in the middle of a rollout.
resume_rollout move paused live | Go on with a rollout.
roll_back_deployment move live,paused rolled_back | Return to the release before.

service incidents | Outages and who works on them.
record incident IC title
title mix(Slow|Missing|Broken|Double, checkout|invoices|logins|pictures|mails) | What is wrong.
severity one(minor|major|critical) | How bad it is.
commander person | Who leads.
affected int(1..5000) | Number of people who suffer.
started day | Since when.
states open mitigated resolved
find_incident find | Look an outage up by what is wrong.
get_incident get | Severity, commander, affected people and start of one outage.
list_incidents list severity | Outages, all or of one severity.
declare_incident create title,severity,commander,affected,started | Raise the alarm about a new outage.
set_severity set severity | Say that an outage is worse or less bad.
change_commander set commander | Have somebody else lead the work on an outage.
update_affected_users set affected | Correct how many people suffer from an outage.
mitigate_incident move open mitigated | Note that the worst of an outage is over.
resolve_incident move open,mitigated resolved | Note that an outage is over.

service alerts | Rules that wake people up.
record alert_rule AL name
name mix(disk|memory|latency|queue|error, high|growing|stuck|missing) | Name of the rule.
threshold int(1..99) | Per cent at which it fires.
on_call person | Who is woken.
channel one(pager|chat|email) | How.
states active muted
find_alert_rule find | Look an alarm rule up by name.
get_alert_rule get | Threshold, person and channel of one alarm rule.
list_alert_rules list channel | Alarm rules, all or of one channel.
create_alert_rule create name,threshold,on_call,channel | Have somebody woken for a new reason.
tune_threshold set threshold | Let an alarm fire earlier or later.
set_on_call set on_call | Have somebody else woken by an alarm.
change_alert_channel set channel | Send an alarm another way.
mute_alert move active muted | Keep an alarm quiet.
unmute_alert move muted active | Let an alarm make noise again.

service certificates | Certificates of web sites.
record certificate CE domain
domain code(WEB) | Which site.
issuer one(letsencrypt|digicert|internal) | Who has signed it.
expires day | Last day on which browsers accept it.
custodian person | Who renews it.
states valid expiring revoked
find_certificate find | Look a site's certificate up by the site.
get_certificate get | Issuer, expiry and custodian of one certificate.
list_certificates list issuer | Certificates, all or of one issuer.
request_certificate create domain,issuer,expires,custodian | Have a certificate signed for a new site.
renew_certificate set expires | Let browsers accept a certificate until a later day.
change_custodian set custodian | Say who else renews a certificate.
switch_issuer set issuer | Have a certificate signed elsewhere.
revoke_certificate move valid,expiring revoked | Declare a certificate worthless, as when its key was stolen.

service backups | Copies of databases.
record backup_job BK database
database mix(orders|users|photos|ledger|metrics, main|archive|test) | What is copied.
keep_days int(1..365) | How long copies are kept.
hour int(0..23) | When it runs.
target one(disk|tape|cloud) | Where copies go.
operator person | Who checks it.
states enabled disabled failing
find_backup_job find | Look a backup job up by its database.
get_backup_job get | Retention, hour, target and operator of one backup job.
list_backup_jobs list target | Backup jobs, all or to one target.
schedule_backup create database,keep_days,hour,target,operator | Copy another database every night.
set_retention set keep_days | Keep the copies of a database longer or shorter.
set_backup_hour set hour | Copy a database at another time of day.
change_backup_target set target | Send the copies of a database elsewhere.
disable_backup move enabled,failing disabled | Copy a database no more.
enable_backup move disabled,failing enabled | Copy a database again.

service flags | Switches that turn features of a product on for some people.
record feature_flag FF name
name mix(dark|fast|new|beta|smart, checkout|search|editor|inbox|profile) | Name of the feature.
percent int(0..100) | Share of people who have it.
team mix(core|growth|mobile|data, team|guild) | Who has built it.
reviewer person | Who decides on it.
states on off retired
find_feature_flag find | Look a feature switch up by name.
get_feature_flag get | Share, team and reviewer of one feature switch.
list_feature_flags list team | Feature switches, all or of one team.
add_feature_flag create name,percent,team,reviewer | Put a new feature behind a switch.
set_rollout_percent set percent | Show a feature to another share of people.
transfer_feature_flag set team | Make another team answer for a feature.
turn_feature_on move off on | Show a feature.
turn_feature_off move on off | Hide a feature.
retire_feature_flag move on,off retired | Remove a switch that nobody needs any more.

service bugs | Defects of programs.
record bug BU summary
summary mix(Crash|Typo|Leak|Freeze|Flicker, in login|in export|in search|on startup) | What is wrong.
developer person | Who mends it.
priority one(low|medium|high|urgent) | How soon.
points int(1..13) | Effort.
milestone code(MIL) | In which release it must be mended.
states open fixed verified wontfix
find_bug find | Look a defect up by what is wrong.
get_bug get | Developer, priority, effort and milestone of one defect.
list_bugs list priority | Defects, all or of one priority.
file_bug create summary,developer,priority,points,milestone | Report a new defect.
assign_bug set developer | Have somebody else mend a defect.
prioritise_bug set priority | Mend a defect sooner or later.
plan_bug set milestone | Mend a defect in another release.
mark_bug_fixed move open fixed | Say that a defect was mended.
verify_bug move fixed verified | Say that a mended defect was tried out.
close_bug_wontfix move open wontfix | Decide to leave a defect as it is.

service pipelines | Builds and tests that run for every change.
record pipeline PL repository
repository mix(cart|search|login|mail|photo, api|app|docs) | Which code.
branch one(main|develop|release) | Which line of it.
timeout_min int(5..120) | Minutes until it is stopped.
maintainer person | Who mends it.
states green red disabled
find_pipeline find | Look a build up by its repository.
get_pipeline get | Branch, time limit and maintainer of one build.
list_pipelines list branch | Builds, all or of one branch.
add_pipeline create repository,branch,timeout_min,maintainer | Build and test another repository.
set_pipeline_timeout set timeout_min | Stop a build after more or fewer minutes.
change_maintainer set maintainer | Say who else mends a build.
retarget_pipeline set branch | Build another branch.
disable_pipeline move green,red disabled | Build a repository no more.

service domains | Names on the internet.
record domain DO name
name code(DOM) | The name.
registrar mix(Name|Web|Net, Haven|Forge|Port) | Where it is registered.
renews day | When it must be paid again.
price money(5..90) | Euros a year.
owner person | Whose it is.
states registered parked expired
find_domain find | Look an internet name up.
get_domain get | Registrar, renewal, price and owner of one internet name.
list_domains list registrar | Internet names, all or of one registrar.
register_domain create name,registrar,renews,price,owner | Buy an internet name.
renew_domain set renews | Pay for an internet name until a later day.
transfer_domain set registrar | Move an internet name to another registrar.
sell_domain set owner | Give an internet name to somebody else.
park_domain move registered parked | Show nothing under an internet name.
"""
