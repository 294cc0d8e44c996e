"""Services of an office: rooms, people who come and go, and papers. `descriptions.py` explains their format."""

DESCRIPTIONS = """
service rooms | Meeting rooms of the head office and what stands in them.
record room RM name
name mix(Blue|Green|North|South|Round|Glass, Room|Hall|Studio|Lounge) | What is written on the door.
floor int(0..9) | Storey, 0 for the ground floor.
seats int(4..40) | How many people can sit in it.
screen one(none|projector|display) | What slides are shown on.
caretaker person | Who looks after it.
states bookable closed
find_room find | Look a meeting room up by the name on its door.
get_room get | Everything about one meeting room: storey, seats, equipment, caretaker.
list_rooms list floor | Meeting rooms, of one storey or of all.
set_room_seating set seats | Change how many chairs a meeting room is furnished with.
fit_room_screen set screen | Install other presentation equipment in a meeting room.
appoint_room_caretaker set caretaker | Make somebody responsible for a meeting room.
close_room move bookable closed | Take a meeting room out of use, for instance for painting.
reopen_room move closed bookable | Allow bookings of a closed meeting room again.

service visitors | Guests who are announced at the reception desk.
record visit VS guest
guest person | Full name of the guest.
company mix(Acme|Globex|Initech|Umbra|Hooli|Stark, Ltd|Group|Labs) | Where the guest comes from.
host person | The employee who receives the guest.
day day | When the guest comes.
states announced inside gone
find_visit find | Look a guest's visit up by the guest's name.
get_visit get | One visit with company, host and day.
list_visits list day | Visits at the reception, of one day or of all.
announce_visitor create guest,company,host,day | Tell the reception desk that a guest will come.
change_visit_host set host | Name another employee to receive a guest.
postpone_visit set day | Move an announced guest to another day.
check_in_visitor move announced inside | Note that a guest has arrived and got a badge.
check_out_visitor move inside gone | Note that a guest has left the building.

service parking | Parking spaces under the building.
record space PK bay
bay code(BAY) | The number painted on the floor.
holder person | Who may park there.
plate code(CAR) | Registration of the car that is expected.
charger one(no|slow|fast) | Whether electric cars can be charged.
fee money(10..90) | Monthly rent in euros.
states free rented blocked
find_parking_space find | Look a parking space up by its bay number.
get_parking_space get | Holder, car, charger and rent of one parking space.
list_parking_spaces list charger | Parking spaces, all or those with a certain charger.
rent_out_parking_space move free rented holder,plate | Give a vacant parking space to somebody with a car.
vacate_parking_space move rented free | End the rent of a parking space.
change_parking_fee set fee | Ask another monthly rent for a parking space.
install_charger set charger | Say what charging point a parking space has now.

service badges | Access badges that open the doors of the building.
record badge BDG number
number code(AC) | Printed on the badge.
owner person | Who carries it.
zone one(lobby|offices|laboratory|datacentre|everywhere) | Which doors it opens.
expires day | Last day on which it works.
states active lost revoked
find_badge find | Look an access badge up by its printed number.
get_badge get | Owner, zone and expiry of one access badge.
list_badges list zone | Access badges, all or those for one zone.
issue_badge create number,owner,zone,expires | Hand out a new access badge.
extend_badge set expires | Let an access badge work until a later day.
change_badge_zone set zone | Open other doors to an access badge.
report_badge_lost move active lost | Block an access badge that cannot be found.
revoke_badge move active,lost revoked | Withdraw an access badge for good.

service mailroom | Letters and packages that reach the building's post room.
record item ML tracking
tracking code(TRK) | Number on the label.
recipient person | Employee it is addressed to.
sender mix(Tax|City|Court|Bank|Notary|Press, Office|Archive|Service) | Who has sent it.
shelf int(1..30) | Where it lies in the post room.
kind one(letter|package|registered) | What it is.
states waiting handed_over returned
find_mail_item find | Look a letter or package up by the number on its label.
get_mail_item get | Recipient, sender and shelf of one piece of mail.
list_mail list recipient,kind | Pieces of mail, for one employee or of one kind.
receive_mail create tracking,recipient,sender,shelf,kind | Enter a letter or package that the postman has brought.
move_mail_item set shelf | Put a piece of mail on another shelf.
readdress_mail set recipient | Correct to whom a piece of mail is addressed.
hand_over_mail move waiting handed_over | Note that the addressee has collected the mail.
return_mail_to_sender move waiting returned | Send a piece of mail back.

service stationery | The cupboard with paper, pens and toner.
record article ST name
name mix(red|black|lined|recycled|sticky|large, pens|notebooks|envelopes|folders) | What it is called on the order form.
stock int(0..90) | Pieces in the cupboard.
minimum int(5..25) | Below this many pieces more are ordered.
supplier mix(Paper|Pen|Desk|Bureau, World|Direct|House) | Where it is ordered.
states stocked discontinued
find_stationery find | Look an office article up by name.
get_stationery get | Stock, minimum and supplier of one office article.
list_stationery list supplier | Office articles, all or of one supplier.
take_stationery take stock | Remove pieces of an article from the cupboard for use.
restock_stationery add stock | Put newly delivered pieces of an article into the cupboard.
set_stationery_minimum set minimum | Change below how many pieces an article is ordered again.
switch_stationery_supplier set supplier | Order an article from another firm in future.
discontinue_stationery move stocked discontinued | Stop keeping an article in the cupboard.

service desks | Shared desks that people reserve for a day.
record desk DK label
label code(DSK) | On the sticker at the desk.
floor int(1..8) | Storey.
user person | Who sits there.
equipment one(plain|monitor|standing|quiet) | What kind of place it is.
states free reserved broken
find_desk find | Look a shared desk up by its sticker.
get_desk get | Storey, equipment and user of one shared desk.
list_desks list floor,equipment | Shared desks by storey or equipment.
reserve_desk move free reserved user | Keep a shared desk for a colleague.
release_desk move reserved free | Give a reserved workplace back to everybody.
report_broken_desk move free,reserved broken | Say that a workplace cannot be used.
repair_desk move broken free | Say that a workplace can be used again.
equip_desk set equipment | Change what kind of workplace a shared desk is.

service agenda | Meetings with a chair, a day and a place.
record meeting MT topic
topic mix(Budget|Hiring|Safety|Product|Security|Brand, review|kickoff|workshop|retrospective) | What it is about.
chair person | Who leads it.
day day | When it takes place.
minutes_long int(15..120) | Length in minutes.
city city | Where it takes place.
states planned held cancelled
find_meeting find | Look a meeting up by its topic.
get_meeting get | Chair, day, length and place of one meeting.
list_meetings list city,day | Meetings by place or day.
plan_meeting create topic,chair,day,minutes_long,city | Put a new meeting on the agenda.
reschedule_meeting set day | Hold a meeting on another day.
change_meeting_chair set chair | Have somebody else lead a meeting.
set_meeting_length set minutes_long | Make a meeting shorter or longer.
cancel_meeting move planned cancelled | Call a meeting off.

service actions | Action items that were agreed on in meetings.
record action AI title
title mix(Draft|Check|Update|Publish|Translate, handbook|roadmap|price list|press kit|survey) | What is to be done.
assignee person | Who does it.
due day | By when.
effort int(1..20) | Estimated hours.
states open done dropped
find_action find | Look an action item up by what is to be done.
get_action get | Assignee, deadline and effort of one action item.
list_actions list assignee | Action items, all or of one person.
add_action create title,assignee,due,effort | Write a new action item down.
reassign_action set assignee | Give an action item to somebody else.
set_action_deadline set due | Change by when an action item must be done.
estimate_action set effort | Say how many hours an action item takes.
complete_action move open done | Tick an action item off.
drop_action move open dropped | Decide that an action item will not be done.

service contracts | Signed agreements and when they run out.
record contract CT reference
reference code(AGR) | Reference number.
partner mix(Acme|Globex|Initech|Hooli|Stark|Wayne, Ltd|Group|Labs) | The other party.
value money(500..90000) | Worth in euros a year.
ends day | When it runs out.
lawyer person | Who keeps it.
states draft signed terminated
find_contract find | Look an agreement up by its reference number.
get_contract get | Partner, worth, end and lawyer of one agreement.
list_contracts list partner | Agreements, all or with one partner.
draft_contract create reference,partner,value,ends,lawyer | Begin a new agreement that is not signed yet.
sign_contract move draft signed | Put an agreement into force.
prolong_contract set ends | Let an agreement run until another date.
renegotiate_contract set value | Change what an agreement is worth a year.
assign_lawyer set lawyer | Let another lawyer keep an agreement.
terminate_contract move signed terminated | End an agreement before it runs out.

service archive | Boxes of old papers in the cellar.
record box BX label
label code(BOX) | On the front of the box.
content mix(tax|staff|sales|legal|project, files 2019|files 2020|files 2021|drawings) | What is inside.
aisle int(1..20) | Where it stands.
destroy_on day | When it may be shredded.
states stored borrowed shredded
find_box find | Look an archive box up by its label.
get_box get | Content, aisle and shredding date of one archive box.
list_boxes list aisle | Archive boxes, all or of one aisle.
store_box create label,content,aisle,destroy_on | Put a new box of papers into the cellar.
move_box set aisle | Carry an archive box to another aisle.
borrow_box move stored borrowed | Take an archive box out to read in it.
bring_back_box move borrowed stored | Put a borrowed archive box back.
keep_box_longer set destroy_on | Shred an archive box at a later date.
"""
